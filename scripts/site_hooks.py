"""Hook of mkdocs: on the site, links to files outside of docs/ become plain text.

In the repository these links lead to examples and sources, which are not part of the site.
"""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    folder = posixpath.dirname(page.file.src_uri)

    def plain(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link["target"].partition("#")[0]))
        return link["text"] if path.startswith("..") else link[0]

    return _LINK.sub(plain, markdown)
