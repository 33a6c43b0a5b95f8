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
    # The first line of a code block may also name a file or a test. GitHub hides the name, but Python-Markdown would
    # not recognise the block.
    return re.sub(r"^```(\w+) \S+$", r"```\1", markdown, flags=re.M)
