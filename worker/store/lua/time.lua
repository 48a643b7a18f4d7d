-- The store's clock.
--
-- returns
--   microseconds
return whole(now())
