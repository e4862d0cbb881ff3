"""Documents of people, of any kind of file, as headings and the text below them."""
