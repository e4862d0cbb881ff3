"""Documents of people: Markdown, text and tables, and what libraries read: HTML, PDF, Word, PowerPoint,
Excel, EPUB; as headings with what stands under them."""
