-- The store's clock.
-- Result microseconds
return whole(now())
