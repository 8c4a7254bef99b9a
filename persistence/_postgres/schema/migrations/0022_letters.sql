-- What is no message is kept once: of one publisher to one agent, all with one reason are one dead letter with
-- the first one's bytes and their number.
-- Alters `dead_letters` without a rewrite; the index is built under a lock that keeps its writers waiting, a second
-- for a million letters. Hosts of the release before keep working, and show such letters without the number.

alter table dead_letters add column times int not null default 1;

create index dead_letters_undecodable on dead_letters (agent, sender, hashtextextended(last_error, 0))
  where reason = 'undecodable';
