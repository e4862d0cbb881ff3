"""Document readers: files of many formats become headings and the text below them."""
