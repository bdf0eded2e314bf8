CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, total integer NOT NULL);

-- What is to be published, written in the transaction of what it tells of.
--
-- `id` can't be the number of the message: PostgreSQL hands ids out before transactions commit, so 8 may be there while 7
-- is still to come; and 7 may never come. Who has published 8 and goes on behind it loses 7. So `seq` is empty at first, and
-- the relay numbers what it sees: a row that becomes visible late gets a later number.
--
-- Rows that tell of the same order keep their sequence where the order's row is locked (inserted, updated, SELECT … FOR
-- UPDATE) before the outbox is written to: who locks it second gets the greater id, and commits second.
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    body text NOT NULL,
    seq bigint UNIQUE
);

-- The last number that was given: one row.
CREATE TABLE relay (last_seq bigint NOT NULL);
INSERT INTO relay VALUES (0);
