"""The chat page in a browser, over a served model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.ui.conftest import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.ui
Shot = Callable[[str], None]

LONG = "Write a long story about a dragon and a village."


def until(page: Page, condition: str) -> None:
    """Wait for an expression; Playwright's own way would need a policy that lets strings be evaluated."""
    wait_until(lambda: bool(page.evaluate(condition)), condition)


def ask(page: Page, text: str, *, wait: bool = True) -> None:
    page.fill("#prompt", text)
    page.keyboard.press("Enter")
    if wait:
        done(page)


def done(page: Page) -> None:
    page.wait_for_selector("#send:visible")
    until(page, "!document.querySelector('.message.waiting')")


def bound(page: Page, tokens: int, **more: float) -> None:
    """Sampling settings for short, repeatable replies."""
    page.click("#open-settings")
    for name, value in {"max_tokens": tokens, "temperature": 0, **more}.items():
        page.fill(f"#sampling-{name}", str(value))
        page.dispatch_event(f"#sampling-{name}", "change")
    page.keyboard.press("Escape")


def streaming(page: Page) -> None:
    """Ask for a long reply, and come back when some of it is shown."""
    bound(page, 2000)
    ask(page, LONG, wait=False)
    until(page, "document.querySelector('.message.assistant .body')?.innerText.length > 20")


def texts(page: Page, role: str) -> list[str]:
    return page.locator(f".message.{role} .body").all_inner_texts()


def engine(address: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{address}/stats", timeout=60).json()["models"][0]
    return found


def test_a_reply_streams_and_shows_its_figures(page: Page, shot: Shot) -> None:
    shot("empty")
    bound(page, 24)
    held: list[Route] = []
    page.route("**/v1/chat/completions", lambda route: held.append(route))
    ask(page, "What is the capital of France?", wait=False)
    page.wait_for_selector(".message.assistant.waiting")
    assert page.is_visible("#stop")
    wait_until(lambda: bool(page.evaluate("true") and held), "the request")  # events come while the page is asked something
    held[0].continue_()
    done(page)
    (reply,) = texts(page, "assistant")
    assert reply.strip()
    line = page.locator(".message.assistant .figures").inner_text()
    assert "tok/s" in line
    assert " of 8,192 tokens" in line
    shot("reply")


def test_the_page_says_what_the_library_says(page: Page, address: str) -> None:
    bound(page, 16)
    ask(page, "Say hello to the reader.")
    body = {"model": page.input_value("#model"), "messages": [{"role": "user", "content": "Say hello to the reader."}]}
    answer = httpx.post(f"{address}/v1/chat/completions", json=body | {"max_tokens": 16, "temperature": 0}, timeout=60).json()
    shown = " ".join(texts(page, "assistant")[0].split())
    assert shown == " ".join(answer["choices"][0]["message"]["content"].split())


def test_stop_keeps_what_came(page: Page, address: str, shot: Shot) -> None:
    streaming(page)
    shot("streaming")
    page.click("#stop")
    done(page)
    assert len(texts(page, "assistant")[0]) > 20
    assert "stopped" in page.locator(".message.assistant .figures").inner_text()
    wait_until(lambda: engine(address)["engine"]["running"] == 0, "the end of the request")


def test_edit_forks_and_both_branches_stay(page: Page, shot: Shot) -> None:
    bound(page, 12)
    ask(page, "Say red.")
    first = texts(page, "assistant")
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").fill("Say blue.")
    shot("editing")
    page.locator(".message.user").get_by_role("button", name="Send").click()
    done(page)
    assert texts(page, "user") == ["Say blue."]
    shot("forked")
    page.get_by_role("button", name="Previous version").click()
    assert texts(page, "user") == ["Say red."]
    assert texts(page, "assistant") == first


def test_regenerate_adds_a_version(page: Page) -> None:
    bound(page, 12)
    ask(page, "Say something.")
    page.get_by_role("button", name="Regenerate").click()
    done(page)
    assert page.locator(".message.assistant").get_by_text("2/2").is_visible()
    assert len(texts(page, "assistant")) == 1


def test_a_reload_shows_the_same_conversation(page: Page) -> None:
    bound(page, 12)
    ask(page, "Remember this.")
    before = texts(page, "assistant")
    page.reload()
    page.wait_for_selector(".message.assistant")
    assert (texts(page, "user"), texts(page, "assistant")) == (["Remember this."], before)
    ask(page, "And this.")
    assert len(texts(page, "assistant")) == 2
    assert "reused" in page.locator(".message.assistant .figures").last.inner_text()


def test_a_reload_in_the_middle_of_a_reply_keeps_what_came(page: Page, shot: Shot) -> None:
    streaming(page)
    stored = """async () => {
        const { Store } = await import("/web/store.js");
        const [{ messages }] = await (await Store.open()).all();
        return Object.values(messages).find(({ role }) => role === "assistant").text.length > 20;
    }"""
    wait_until(lambda: bool(page.evaluate(stored)), "a part of the reply in the browser's database")
    page.reload()
    page.wait_for_selector(".message.assistant")
    assert len(texts(page, "assistant")[0]) > 20
    assert page.locator(".message.assistant .figures").inner_text().endswith("interrupted")
    shot("interrupted")


def test_a_conversation_that_is_deleted_in_the_middle_of_a_reply_stays_away(page: Page, address: str) -> None:
    streaming(page)
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name=f"Delete “{LONG}”").click()
    wait_until(lambda: engine(address)["engine"]["running"] == 0, "the end of the request")
    done(page)
    page.reload()
    until(page, "document.querySelector('#model').options.length > 0")
    assert page.locator("#conversations li").count() == 0


def test_an_edit_outlives_the_end_of_a_reply(page: Page) -> None:
    streaming(page)
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").fill("Say blue.")
    page.locator(".message.user").get_by_role("button", name="Send").click()
    assert page.inner_text("#status") == "A reply is being written. Stop it first, or wait."
    page.click("#stop")
    done(page)
    assert page.get_by_label("Edit the message").input_value() == "Say blue."
    page.get_by_role("button", name="Cancel").click()
    assert texts(page, "user") == [LONG]


def test_the_end_of_a_reply_does_not_move_the_page_under_a_reader(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 400})
    streaming(page)
    area = "document.querySelector('#scroll')"
    until(page, f"{area}.scrollHeight - {area}.clientHeight > 200")
    page.evaluate(f"{area}.scrollTop = 0")
    page.click("#stop")
    done(page)
    assert page.evaluate(f"{area}.scrollTop") == 0


def test_dark_mode_stays(page: Page, shot: Shot) -> None:
    bound(page, 8)
    ask(page, "Hello.")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.select_option("#theme", "dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    shot("dark")
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def test_a_second_request_sees_its_place_in_the_queue(page: Page, address: str, shot: Shot) -> None:
    name = page.input_value("#model")
    body = {"model": name, "messages": [{"role": "user", "content": LONG}], "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=60) as other:
        lines = other.iter_lines()
        next(lines)
        ask(page, "Hello?", wait=False)
        until(page, "document.querySelector('#status').innerText === 'Waiting: next in the queue'")
        shot("queued")
    done(page)
    assert texts(page, "assistant")[0]


def test_an_error_is_shown_with_a_hint_and_nothing_is_lost(page: Page, shot: Shot) -> None:
    ask(page, "word " * 9000)
    box = page.locator(".message.assistant .error")
    assert "context" in box.inner_text()
    shot("error")
    assert texts(page, "user")[0].startswith("word word")
    bound(page, 8)
    page.click("#new")
    ask(page, "Short.")
    assert texts(page, "assistant")[0]


def test_a_call_stands_behind_the_text_before_it(page: Page, shot: Shot) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "get_weather", "arguments": '{"city": "Bern"}'}}
    deltas: list[dict[str, Any]] = [{"reasoning_content": "The weather."}, {"content": "Let me look."}, {"tool_calls": [call]}]
    lines = [json.dumps({"choices": [{"delta": delta}]}) for delta in deltas] + ["[DONE]"]
    body = "".join(f"data: {line}\n\n" for line in lines)
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    ask(page, "What is the weather in Bern?")
    words = page.locator(".message.assistant").inner_text()
    assert words.index("Reasoning") < words.index("Let me look.") < words.index("get_weather")
    shot("call")


def test_a_server_with_another_model_is_asked_what_it_has(page: Page) -> None:
    (there,) = page.locator("#model option").all_inner_texts()
    page.evaluate("document.querySelector('#model option').value = 'gone'")
    ask(page, "Hello?")
    assert "There is no model 'gone'." in page.locator(".message.assistant .error").inner_text()
    assert page.input_value("#model") == there
    bound(page, 4)
    page.get_by_role("button", name="Regenerate").click()
    done(page)
    assert not page.locator(".message.assistant .error").is_visible()


def test_a_model_that_cannot_be_loaded_is_no_reason_to_wait(page: Page) -> None:
    refusal = {"error": {"message": "broken cannot be loaded.", "type": "load_failed", "param": None, "code": "load_failed"}}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=503, json=refusal))
    ask(page, "Hello?")
    assert page.locator(".message.assistant .error").inner_text() == "broken cannot be loaded."


def test_export_and_import_move_conversations(page: Page, tmp_path: Path) -> None:
    bound(page, 8)
    ask(page, "Keep me.")
    with page.expect_download() as waiting:
        page.click("#export")
    file = tmp_path / "conversations.json"
    waiting.value.save_as(file)
    assert json.loads(file.read_text("utf-8"))["conversations"][0]["title"] == "Keep me."
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete “Keep me.”").click()
    until(page, "!document.querySelector('#conversations li')")
    page.set_input_files("#import-file", file)
    page.get_by_role("button", name="Keep me.", exact=True).click()
    assert texts(page, "user") == ["Keep me."]
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"format": "tensorsharp-conversations", "conversations": [{"id": "x"}]}', "utf-8")
    page.set_input_files("#import-file", wrong)
    page.get_by_text("wrong.json was not imported: it has no messages.").wait_for()
    wrong.write_text(
        '{"format": "tensorsharp-conversations", "conversations": [{"id": "x", "messages": {}, "leaf": null}]}', "utf-8"
    )
    page.set_input_files("#import-file", wrong)
    page.get_by_text("wrong.json was not imported: its title, system or updated is malformed.").wait_for()
    page.set_input_files("#import-file", file)
    until(page, "document.querySelector('#notice').hidden")


def test_attached_text_reaches_the_model_and_images_are_refused_with_the_reason(page: Page, tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("The secret word is banana.", "utf-8")
    image = tmp_path / "image.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n")
    page.set_input_files("#attach-file", [note, image])
    page.get_by_text("This model takes no images").wait_for()
    assert page.locator("#attachments").inner_text().startswith("note.txt")
    bound(page, 24)
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "What is the secret word?")
    assert "The secret word is banana." in sent.value.post_data_json["messages"][-1]["content"]
    page.get_by_text("Attached: note.txt").wait_for()
    assert not page.is_visible("#notice")


def test_the_keyboard_is_enough(page: Page) -> None:
    bound(page, 8)
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.type("Typed")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("on two lines")
    page.keyboard.press("Enter")
    done(page)
    assert texts(page, "user") == ["Typed\non two lines"]


def test_a_phone_has_the_list_behind_a_button(page: Page, shot: Shot) -> None:
    page.set_viewport_size({"width": 390, "height": 780})
    bound(page, 16)
    ask(page, "Hello from a phone.")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shot("phone")
    page.click("#open-sidebar")
    page.get_by_role("button", name="Hello from a phone.", exact=True).wait_for()
    shot("phone-list")


def test_settings_are_checked_and_kept(page: Page, shot: Shot) -> None:
    page.click("#open-settings")
    page.fill("#tools", "no json")
    page.dispatch_event("#tools", "change")
    assert "The tools are no JSON" in page.inner_text("#settings-error")
    shot("settings")
    page.fill("#system", "Answer in one word.")
    page.dispatch_event("#system", "change")
    page.keyboard.press("Escape")
    bound(page, 4)
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "Hi")
    body = sent.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Answer in one word."}
    assert (body["max_tokens"], body["temperature"]) == (4, 0)


def test_the_dashboard_counts(page: Page, address: str, shot: Shot) -> None:
    bound(page, 8)
    ask(page, "Count me.")
    page.goto(f"{address}/dashboard")
    page.wait_for_selector("#models section")
    assert "Tokens generated" in page.inner_text("#models")
    shot("dashboard")


MARKDOWN = """# Title
Some **bold** and `code`, <b>no markup</b>, [a link](https://example.org), [no link](javascript:alert(1)).

1. one
2. two
   - inner

| a | b | c |
|---|--:|:-:|
| 1 | 2 | 3 |

```python
print("<i>")
```"""


def test_markdown_is_shown_and_markup_is_not(page: Page) -> None:
    html = page.evaluate(
        """async (text) => {
            const { show } = await import("/web/markdown.js");
            const whole = document.createElement("div"), grown = document.createElement("div");
            show(whole, text);
            for (let end = 1; end <= text.length; end++) show(grown, text.slice(0, end));
            return [whole.innerHTML, grown.innerHTML];
        }""",
        MARKDOWN,
    )
    whole, grown = html
    assert grown == whole
    for piece in ("<strong>bold</strong>", "<code>code</code>", "&lt;b&gt;no markup&lt;/b&gt;", 'href="https://example.org"'):
        assert piece in whole
    for piece in (
        "<li>inner</li>",
        "<td>1</td>",
        '<td class="right">2</td>',
        '<td class="center">3</td>',
        'print("&lt;i&gt;")',
        "[no link](javascript:alert(1))",
    ):
        assert piece in whole
