"""Commands run one after another as stages; each runs once, and again only when its settings or inputs have
changed."""
