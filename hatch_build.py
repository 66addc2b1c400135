"""Makes the README of a release: its links lead to the repository that ``project.urls`` names."""

from __future__ import annotations

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface


class AbsoluteLinks(MetadataHookInterface):
    """An index shows the README alone: a link within the repository leads nowhere there."""

    def update(self, metadata: dict[str, object]) -> None:
        """Set the field ``readme``."""
        urls = metadata["urls"]
        assert isinstance(urls, dict)
        text = Path(self.root, "README.md").read_text("utf-8")
        absolute = re.sub(r"\]\((?!https?:|#)([^)]+)\)", rf"]({urls['Source']}/blob/main/\1)", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute}
