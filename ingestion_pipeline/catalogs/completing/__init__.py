"""How extractions end: counted from durable rows, judged by the gates, published and told once."""
