"""A person at the page: opens it in headless chromium, types, clicks, reads, and waits for what should appear.

Nothing here trusts the page to be quick. Every action waits until its element is shown, enabled and at rest, is tried
again when the page redraws under it, and checks that it had its effect. What never happens is told with the selector,
a picture and the page's text.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    InvalidElementStateException,
    MoveTargetOutOfBoundsException,
    NoSuchElementException,
    StaleElementReferenceException,
    TimeoutException,
    WebDriverException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE = 90
_SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_PASSING = (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    InvalidElementStateException,
    MoveTargetOutOfBoundsException,
    NoSuchElementException,
    StaleElementReferenceException,
)
"""What a page that is still drawing or moving answers to an action."""
_PLACE = "const box = arguments[0].getBoundingClientRect(); return [box.x, box.y, box.width, box.height]"
_INTO_VIEW = "arguments[0].scrollIntoView({block: 'center', inline: 'nearest', behavior: 'instant'})"


def open_browser(profile: Path, width: int, height: int, dark: bool) -> webdriver.Chrome:
    """Headless chromium with an empty profile and a page of exactly this size."""
    options = webdriver.ChromeOptions()
    for switch in (*_SWITCHES, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = shutil.which("chromium") or ""
    browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    return browser


class Visitor:
    """One browser session at the page.

    Args:
        evidence: folder for a picture of the page when something does not happen.
    """

    def __init__(self, browser: webdriver.Chrome, address: str, evidence: Path) -> None:
        self.browser = browser
        self.evidence = evidence
        if address.startswith("file:"):
            browser.get(address)
        else:
            self.open(address)

    def open(self, address: str) -> None:
        """Loads the page and waits until it can be used."""
        self.browser.get(address)
        if self.browser.execute_script("return window.innerWidth > 1200"):
            # On a wide screen the settings slide in after loading; before that everything still moves.
            self.open_settings()
        first = "button[role=tab][aria-selected=true]"
        self._until(first, lambda: self._at_rest(first), "does not come to rest")

    def leave(self) -> list[str]:
        """Closes the browser; returns the errors its console holds."""
        errors = self._console_errors()
        self.browser.quit()
        return errors

    def expect_console_errors(self, part: str) -> None:
        """Takes the errors so far off the console; all of them must contain the text."""
        assert [error for error in self._console_errors() if part not in error] == []

    def _console_errors(self) -> list[str]:
        return [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]

    def close_tab(self) -> None:
        """Closes the page as a person would, the browser stays."""
        page = self.browser.current_window_handle
        self.browser.switch_to.new_window("tab")
        elsewhere = self.browser.current_window_handle
        self.browser.switch_to.window(page)
        self.browser.close()
        self.browser.switch_to.window(elsewhere)

    def find(self, selector: str) -> WebElement:
        """The first element."""
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """All text of the first element, hidden parts included; empty when there is none."""
        script = "const found = document.querySelector(arguments[0]); return found ? found.textContent : ''"
        return str(self.browser.execute_script(script, selector))

    def count(self, selector: str) -> int:
        """How many elements there are."""
        return len(self.browser.find_elements(By.CSS_SELECTOR, selector))

    def wait_for(self, selector: str, text: str = "", patience: float = PATIENCE) -> None:
        """Waits until an element is there and holds the text."""
        self._until(
            selector,
            lambda: self.count(selector) > 0 and text in self.text(selector),
            f"does not hold {text!r}" if text else "does not appear",
            patience,
        )

    def wait_until_gone(self, selector: str) -> None:
        """Waits until no such element is left."""
        self._until(selector, lambda: self.count(selector) == 0, "does not go away")

    def click(self, selector: str) -> None:
        """Waits until an element can be clicked, and clicks it once."""
        self._act(selector, WebElement.click, "cannot be clicked")

    def press(self, selector: str, *keys: str) -> None:
        """Waits until an element can take keys, and types into it."""
        self._act(selector, lambda element: element.send_keys(*keys), "takes no keys")

    def tab(self, name: str) -> None:
        """Opens a tab of the page; on a narrow screen from the menu of those that have no room."""
        named = "return [...document.querySelectorAll(arguments[1])].find((it) => it.innerText.trim() === arguments[0])"

        def open_tab() -> bool:
            button = self.browser.execute_script(named, name, "button[role=tab]")
            if button is None:
                item = self.browser.execute_script(named, name, ".overflow-dropdown button")
                if item is None or "selected" in item.get_attribute("class").split():
                    return item is not None
                (item if item.is_displayed() else self.find(".overflow-menu > button")).click()
                return False
            if button.get_attribute("aria-selected") != "true":
                button.click()
            return button.get_attribute("aria-selected") == "true"

        self._until(f"tab {name!r}", open_tab, "does not open")

    def wait_for_live_race(self, patience: float = PATIENCE) -> None:
        """Waits until a race that was run here, not a recorded one, has ended with its badge."""
        self.wait_for(".origin-mark", "this machine", patience=patience)
        self.wait_for(".badge[data-state=identical], .badge[data-state=different]", patience=patience)

    def ask(self, question: str, box: str = "#chat-prompt") -> None:
        """Opens the tab of the box, waits until a question can be sent, pastes it and sends it."""
        self.tab({"#chat-prompt": "Chat", "#race-prompt": "Race"}[box])
        self._until(f"{box} .submit-button", lambda: self.find(f"{box} .submit-button").is_displayed(), "is not shown")
        self._type(f"{box} textarea", question)
        self.press(f"{box} textarea", Keys.ENTER)

    def open_settings(self) -> None:
        """Opens the settings beside the page, unless they are open or opening already."""

        def settings_open() -> bool:
            if "open" in (self.find("#settings").get_attribute("class") or "").split():
                return self._at_rest("#settings")
            if time.monotonic() > give_them:
                self.find("#settings .toggle-button").click()
            return False

        give_them = time.monotonic() + 15
        self._until("#settings", settings_open, "do not open")

    def set_answer_limit(self, tokens: int) -> None:
        """Types a value into the setting."""
        self.open_settings()
        self._type("#answer-limit input[type=number]", str(tokens))
        self.press("#answer-limit input[type=number]", Keys.TAB)
        slider = "#answer-limit input[type=range]"
        self._until(slider, lambda: self._value(slider) == str(tokens), f"does not follow to {tokens}")

    def move_slider(self, step: int) -> None:
        """Drags the step slider of the draft trees, and waits for the tree of that step."""
        self._until(
            ".step-slider", lambda: int(self.find(".step-slider").get_attribute("max") or 0) >= step, "is short"
        )
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
        self.browser.execute_script(script, self.find(".step-slider"), str(step))
        self.wait_for(f".tree-canvas[aria-label^='Draft tree of step {step}.']")

    def close_message(self) -> None:
        """Closes the message at the edge; it may also go by itself meanwhile."""

        def closed() -> bool:
            if self.count(".toast-body"):
                self.find(".toast-close").click()
            return self.count(".toast-body") == 0

        self._until(".toast-body", closed, "does not go away")

    def _type(self, selector: str, text: str) -> None:
        """Replaces what an input holds."""

        def typed() -> bool:
            if self._value(selector) != text:
                if not self._at_rest(selector):
                    return False
                element = self.find(selector)
                element.click()
                element.send_keys(Keys.CONTROL, "a")
                self.browser.execute_cdp_cmd("Input.insertText", {"text": text})
            return self._value(selector) == text

        self._until(selector, typed, f"does not take {text[:40]!r}")

    def _value(self, selector: str) -> Any:
        return self.find(selector).get_property("value")

    def _act(self, selector: str, action: Callable[[WebElement], Any], complaint: str) -> None:
        """Does something once to the first element, as soon as that is possible."""

        def acted() -> bool:
            if not self._at_rest(selector):
                return False
            action(self.find(selector))
            return True

        self._until(selector, acted, complaint)

    def _at_rest(self, selector: str) -> bool:
        """Whether the first element is shown, enabled, in view, and stays where it is."""
        element = self.find(selector)
        if not (element.is_displayed() and element.is_enabled()):
            return False
        self.browser.execute_script(_INTO_VIEW, element)
        place = self.browser.execute_script(_PLACE, element)
        time.sleep(0.1)
        return bool(place == self.browser.execute_script(_PLACE, element))

    def _until(self, selector: str, condition: Callable[[], bool], complaint: str, patience: float = PATIENCE) -> None:
        """Asks again and again; in the end says what did not happen, and what the page showed."""
        try:
            WebDriverWait(self.browser, patience, 0.1, _PASSING).until(lambda _: condition())
        except TimeoutException as error:
            raise AssertionError(f"{selector} {complaint} within {patience:.0f} s. {self._shown()}") from error

    def _shown(self) -> str:
        """A picture of the page, and its text."""
        picture = self.evidence / f"page-{time.time_ns()}.png"
        try:
            self.browser.save_screenshot(str(picture))
            text = self.browser.execute_script("return document.body.innerText")
        except WebDriverException as error:
            return f"The browser shows nothing: {error.msg}"
        return f"Picture: {picture}. The page's text:\n{text}"
