"""The agents that ship: importing this module registers them all.

They do real work without any outside service; `chat` joins them where an endpoint is configured.
"""

from worker.shipped import brief, chat, code_review, explain_code, logo_design

__all__ = ["brief", "chat", "code_review", "explain_code", "logo_design"]
