"""Documents of people: Markdown, reStructuredText, HTML, text, Python, PDF and tables, read as headings with
what stands under them."""
