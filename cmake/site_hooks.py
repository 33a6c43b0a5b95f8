"""Hooks of mkdocs.yml."""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import links


def on_config(config):
    # Anchors as on GitHub, where most people read these pages.
    config.mdx_configs.setdefault("toc", {})["slugify"] = links.slug
    return config


def on_page_markdown(markdown, **_):
    # Python-Markdown would show a code block that names a file or a test as text. GitHub does not show the name.
    return re.sub(r"^```(\w+) \S+$", r"```\1", markdown, flags=re.M)
