"""The engines' numbers for Prometheus: the names that vLLM's dashboards know, with a prefix of our own and the label `model`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector as Base

from tensorsharp.engine.metrics import Distribution
from tensorsharp.engine.stats import Family, families
from tensorsharp_app_server.host import ModelHost

Made = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
PREFIX = "tensorsharp_"


class Collector(Base):
    """Reads the statistics of every model in memory when it is asked. One for each application, so that two do not mix."""

    def __init__(self, host: ModelHost) -> None:
        self._host = host

    def collect(self) -> Iterator[Metric]:
        loaded = GaugeMetricFamily(f"{PREFIX}models_loaded", "Models in memory.")
        loaded.add_metric([], len(self._host.loaded))
        found: dict[str, Made] = {"": loaded}
        for one in self._host.loaded:
            for family in families(one.served.llm.stats()):
                metric = found.setdefault(family.name, _metric(family))
                for labels, value in family.samples.items():
                    _add(metric, [one.served.name, *labels], value)
        yield from found.values()


def _metric(family: Family) -> Made:
    name, labels = PREFIX + family.name, ["model", *family.labels]
    if family.kind == "histogram":
        return HistogramMetricFamily(name, family.help, labels=labels)
    if family.kind == "counter":
        return CounterMetricFamily(name, family.help, labels=labels)
    return GaugeMetricFamily(name, family.help, labels=labels)


def _add(metric: Made, labels: list[str], value: float | Distribution) -> None:
    if isinstance(metric, HistogramMetricFamily) and isinstance(value, Distribution):
        bounds = (*(f"{bound:g}" for bound in value.bounds), "+Inf")
        metric.add_metric(labels, list(zip(bounds, accumulate(value.counts), strict=True)), value.total)
    elif not isinstance(metric, HistogramMetricFamily) and not isinstance(value, Distribution):
        metric.add_metric(labels, value)
