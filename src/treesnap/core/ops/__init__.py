"""Operations: the only layer that knows both stores and working trees."""
