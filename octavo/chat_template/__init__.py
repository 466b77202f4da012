"""Chat templates: what a template sees (``template``) and the bounded sandbox it runs in (``sandbox``)."""

from octavo.chat_template.template import ChatTemplate

__all__ = ["ChatTemplate"]
