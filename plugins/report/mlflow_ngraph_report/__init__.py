"""Report with the paper's tables and figures from your own results."""
