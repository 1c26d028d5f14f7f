"""The documentation as a site: `./start site` builds it into site/."""

project = "tpuflow"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "index"
html_theme = "furo"
html_title = "tpuflow"

# Headings may be linked to, as GitHub lets them. Pages link to files of the repository, which the site lacks.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.xref_missing", "myst.header", "misc.highlighting_failure"]

napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "undoc-members": False}
