"""Every state a plugin can be in, and what happens when such a plugin is asked for."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tensorsharp import known
from tensorsharp.errors import PluginError
from tensorsharp.registry import PluginRow, Registry

if TYPE_CHECKING:
    from conftest import Site

MODELS = "tensorsharp.models"
GOOD = 'target="impl:Thing", api=(1, 0), summary="A thing", capabilities=frozenset({"text"})'


def row(registry: Registry, name: str, kind: str = "model") -> PluginRow:
    """The only row of that name."""
    (found,) = (r for r in registry.rows(kind) if r.name == name)
    return found


@pytest.fixture
def zoo(site: Site) -> Site:
    """One plugin in every state that does not depend on another plugin."""
    site.module("impl", "class Thing:\n    pass\n")
    site.plugin("model", "good", "zoo_good", GOOD, version="2.5")
    site.plugin("model", "newer-major", "zoo_major", GOOD.replace("(1, 0)", "(2, 0)"))
    site.plugin("model", "newer-minor", "zoo_minor", GOOD.replace("(1, 0)", "(1, 999)"))
    site.plugin(
        "model", "needy", "zoo_needy", GOOD + ', requires=("no_such_lib",)', requires=["No.Such_Lib >=1; python_version>'3'"]
    )
    site.plugin("model", "elsewhere", "zoo_elsewhere", GOOD + ', probe="zoo_probe:why"')
    site.module("zoo_probe", "def why():\n    return 'no such device here'\n")
    site.plugin("model", "badprobe", "zoo_badprobe", GOOD + ', probe="zoo_badprobe_p:why"')
    site.module("zoo_badprobe_p", "def why():\n    raise OSError('libdevice.so is torn')\n")
    site.plugin("model", "badtarget", "zoo_badtarget", GOOD.replace("impl:Thing", "zoo_bad_impl:Thing"))
    site.module("zoo_bad_impl", "import a_missing_library\n")
    site.module("zoo_raises", "raise RuntimeError('spoiled')\n")
    site.distribution("tensorsharp-model-raises", {MODELS: {"raises": "zoo_raises:spec"}})
    site.module("zoo_exits", "raise SystemExit(3)\n")
    site.distribution("tensorsharp-model-exits", {MODELS: {"exits": "zoo_exits:spec"}})
    site.module("zoo_dict", "spec = {'target': 'impl:Thing'}\n")
    site.distribution("tensorsharp-model-dict", {MODELS: {"dict": "zoo_dict:spec"}})
    site.distribution("tensorsharp-model-absent", {MODELS: {"absent": "zoo_absent:spec"}})
    site.plugin("model", "badapi", "zoo_badapi", GOOD.replace("(1, 0)", "'1.0'"))
    site.plugin("model", "badref", "zoo_badref", GOOD.replace("impl:Thing", "impl.Thing"))
    return site


@pytest.mark.parametrize(
    ("name", "state", "why"),
    [
        ("good", "ready", ""),
        ("newer-major", "incompatible", "written for plugin API 2.0; this core has 1.0"),
        ("newer-minor", "incompatible", "written for plugin API 1.999; this core has 1.0"),
        ("needy", "missing dependency", "needs no_such_lib (pip install no-such-lib)"),
        ("elsewhere", "unavailable", "no such device here"),
        ("badprobe", "broken", "its probe zoo_badprobe_p:why failed: OSError: libdevice.so is torn"),
        ("badtarget", "ready", ""),
        ("raises", "broken", "zoo_raises:spec failed to load: RuntimeError: spoiled"),
        ("exits", "broken", "zoo_exits:spec failed to load: SystemExit: 3"),
        ("dict", "broken", "zoo_dict:spec is of type dict; expected a tensorsharp.plugin.PluginSpec"),
        ("absent", "broken", "zoo_absent:spec failed to load: ModuleNotFoundError: No module named 'zoo_absent'"),
        ("badapi", "broken", "zoo_badapi:spec: api is '1.0'; expected a pair of integers like (1, 0)"),
        ("badref", "broken", "zoo_badref:spec: target is 'impl.Thing'; expected 'package.module:name'"),
    ],
)
def test_state_and_reason(zoo: Site, name: str, state: str, why: str) -> None:
    found = row(Registry(), name)
    assert (found.state, found.why) == (state, why)


def test_listing_imports_no_implementation(zoo: Site) -> None:
    Registry().rows()
    assert "impl" not in sys.modules
    assert "zoo_bad_impl" not in sys.modules


def test_traceback_of_a_broken_plugin_is_kept(zoo: Site) -> None:
    assert "raise RuntimeError('spoiled')" in (row(Registry(), "raises").traceback or "")


def test_load_imports_the_target(zoo: Site) -> None:
    thing = Registry().load("model", "good")
    assert thing is sys.modules["impl"].Thing
    assert Registry().spec("model", "good").summary == "A thing"


@pytest.mark.parametrize("name", ["newer-major", "needy", "elsewhere", "badprobe", "raises", "exits", "dict", "absent"])
def test_a_plugin_that_cannot_run_is_an_error_with_its_reason(zoo: Site, name: str) -> None:
    registry = Registry()
    with pytest.raises(PluginError) as caught:
        registry.load("model", name)
    assert row(registry, name).why in str(caught.value)
    assert f"'{name}' (tensorsharp-model-{name} 1.0)" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_failing_import_is_chained_not_rewritten(zoo: Site) -> None:
    with pytest.raises(PluginError, match="No module named 'a_missing_library'") as caught:
        Registry().load("model", "badtarget")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert caught.value.__cause__.name == "a_missing_library"


@pytest.mark.parametrize("name", ["good", "model:good", "tensorsharp-model-good/good", "model:tensorsharp-model-good/good"])
def test_disabled(zoo: Site, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORSHARP_DISABLE_PLUGINS", f" {name} ,")
    registry = Registry()
    assert (row(registry, "good").state, row(registry, "good").why) == ("disabled", "disabled by TENSORSHARP_DISABLE_PLUGINS")
    assert "good" not in registry.names("model")
    assert registry.unmatched == ()
    with pytest.raises(PluginError, match="disabled by TENSORSHARP_DISABLE_PLUGINS") as caught:
        registry.load("model", "good")
    assert caught.value.hint == "Take 'good' out of TENSORSHARP_DISABLE_PLUGINS to use it."


def test_a_disabled_plugin_is_not_even_looked_at(zoo: Site) -> None:
    assert row(Registry(["raises"]), "raises").state == "disabled"
    assert "zoo_raises" not in sys.modules


def test_disabling_what_is_not_there_is_told(zoo: Site) -> None:
    assert Registry(["goood", "backend:good", "good"]).unmatched == ("goood", "backend:good")


@pytest.fixture
def twins(site: Site) -> Site:
    """Two distributions that provide one name; 'alpha' comes first."""
    for name in ("beta", "alpha"):
        site.module(f"twin_{name}_impl", f"class Thing:\n    origin = '{name}'\n")
        site.module(
            f"twin_{name}",
            f"from tensorsharp.plugin import PluginSpec\nspec = PluginSpec('twin_{name}_impl:Thing', (1, 0), '')\n",
        )
        site.distribution(f"acme-{name}", {MODELS: {"twin": f"twin_{name}:spec"}})
    return site


def test_the_first_distribution_by_name_wins_and_says_so(twins: Site, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    states = {r.distribution: (r.state, r.why) for r in registry.rows("model") if r.name == "twin"}
    assert states == {"acme-alpha": ("ready", ""), "acme-beta": ("shadowed", "acme-alpha 1.0 also provides 'twin'")}
    with caplog.at_level(logging.WARNING, "tensorsharp.registry"):
        assert registry.load("model", "twin").origin == "alpha"
    assert caplog.messages == ["acme-beta also provides the model 'twin'; using acme-alpha"]


def test_distribution_and_name_pick_the_other(twins: Site) -> None:
    assert Registry().load("model", "acme-beta/twin").origin == "beta"


def test_disabling_the_first_makes_way_for_the_second(twins: Site) -> None:
    registry = Registry(["acme-alpha/twin"])
    assert registry.load("model", "twin").origin == "beta"
    with pytest.raises(PluginError, match="is disabled"):
        registry.load("model", "acme-alpha/twin")


def test_a_broken_first_is_an_error_never_the_second(twins: Site) -> None:
    twins.module("twin_alpha", "raise RuntimeError('spoiled')\n")
    with pytest.raises(PluginError, match=r"acme-alpha 1\.0.*spoiled"):
        Registry().load("model", "twin")


def test_the_same_plugin_seen_twice_is_one_row(site: Site, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site.plugin("model", "good", "zoo_good", GOOD)
    copy = tmp_path / "copy"
    copy.mkdir()
    other = type(site)(copy)
    other.distribution("tensorsharp_model.good", {MODELS: {"good": "zoo_good:spec"}})
    monkeypatch.syspath_prepend(str(copy))
    assert row(Registry(), "good").state == "ready"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"model": {"qwen4": "acme-qwen"}, "backend": {"warp": "acme-warp"}, "command": {"fly": "acme-fly"}}
    monkeypatch.setattr(known, "table", lambda: entries)


@pytest.mark.parametrize(
    ("kind", "name", "message", "hint"),
    [
        ("model", "qwen4", "No model plugin serves 'qwen4'.", "Try: pip install acme-qwen"),
        ("model", "goood", "No model plugin serves 'goood'. Did you mean 'good'?", "Installed: "),
        ("backend", "wrap", "No backend plugin is called 'wrap'. Did you mean 'warp'?", "For 'warp': pip install acme-warp"),
        ("command", "fly", "The command 'fly' is not installed.", "Try: pip install acme-fly"),
        ("model", "zzzzzzzz", "No model plugin serves 'zzzzzzzz'.", "Installed: "),
    ],
)
def test_unknown_name(zoo: Site, table: None, kind: str, name: str, message: str, hint: str) -> None:
    with pytest.raises(PluginError) as caught:
        Registry().load(kind, name)
    assert str(caught.value) == message
    assert (caught.value.hint or "").startswith(hint)


def test_unknown_kind(site: Site) -> None:
    with pytest.raises(PluginError, match="no kind of plugin called 'models'; expected one of backend, model,"):
        Registry().load("models", "x")


def test_without_probing_no_probe_runs(zoo: Site) -> None:
    assert {r.name: r.state for r in Registry().rows("model", probe=False)}["elsewhere"] == "ready"
    assert "zoo_probe" not in sys.modules
