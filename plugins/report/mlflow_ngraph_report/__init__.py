"""The tables and figures of the paper from one's own results, as one page that works offline."""
