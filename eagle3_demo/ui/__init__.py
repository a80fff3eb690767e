"""The page. It reads engine events and settings only; it never imports torch."""
