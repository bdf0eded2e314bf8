CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, total integer NOT NULL);

-- The messages to be published. A message is written here in the same transaction as the change that it reports.
--
-- The number of a message can't be its `id`. PostgreSQL gives out ids before transactions commit, so row 8 may be visible
-- before row 7, and row 7 may never come. A relay that has published 8, and then looks only for greater ids, would lose 7.
-- Therefore `seq` is empty at first, and the relay numbers the rows that it sees. A row that becomes visible late gets a
-- later number.
--
-- Messages about the same order keep their sequence if each transaction locks the row of the order (by INSERT, UPDATE or
-- SELECT … FOR UPDATE) before it writes to the outbox. The transaction that gets the lock second then also gets the
-- greater id, and commits second.
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    body text NOT NULL,
    seq bigint UNIQUE
);

-- One row with the last number that the relay has given.
CREATE TABLE relay (last_seq bigint NOT NULL);
INSERT INTO relay VALUES (0);
