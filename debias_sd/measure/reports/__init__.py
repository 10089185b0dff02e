"""Reports as tables, plots, pictures and one HTML page; published numbers among them."""
