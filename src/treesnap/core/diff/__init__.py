"""How two trees, or two or three texts, differ; pure."""
