"""A person at the page: opens it in headless chromium, types, clicks, reads, and waits for what should appear."""

from __future__ import annotations

import shutil
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE = 60
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
    """One browser session at the page."""

    def __init__(self, browser: webdriver.Chrome, address: str) -> None:
        self.browser = browser
        self.open(address)

    def open(self, address: str) -> None:
        """Loads the page and waits until it can be used."""
        self.browser.get(address)
        self.wait_for("#chat-prompt textarea")

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
        waiting = WebDriverWait(self.browser, patience, 0.1, [StaleElementReferenceException])
        waiting.until(
            lambda _: self.count(selector) > 0 and text in self.text(selector), f"{text!r} did not appear in {selector}"
        )

    def wait_until_gone(self, selector: str) -> None:
        """Waits until no such element is left."""
        WebDriverWait(self.browser, PATIENCE, 0.1).until(lambda _: self.count(selector) == 0, f"{selector} stays")

    def click(self, selector: str) -> None:
        """Waits for an element and clicks it."""
        self.wait_for(selector)
        element = self.find(selector)
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def press(self, selector: str, *keys: str) -> None:
        """Types into an element."""
        self.find(selector).send_keys(*keys)

    def tab(self, name: str) -> None:
        """Opens a tab of the page."""
        tabs = self.browser.find_elements(By.CSS_SELECTOR, "button[role=tab]")
        next(button for button in tabs if button.text == name).click()

    def ask(self, question: str, box: str = "#chat-prompt") -> None:
        """Pastes a question and sends it."""
        area = self.find(f"{box} textarea")
        area.clear()
        area.click()
        self.browser.execute_cdp_cmd("Input.insertText", {"text": question})
        area.send_keys(Keys.ENTER)

    def set_answer_limit(self, tokens: int) -> None:
        """Types a value into the setting."""
        box = self.find("#answer-limit input[type=number]")
        box.send_keys(Keys.CONTROL, "a")
        box.send_keys(str(tokens), Keys.TAB)

    def move_slider(self, value: int) -> None:
        """Drags the step slider of the draft trees."""
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
        self.browser.execute_script(script, self.find(".step-slider"), str(value))
