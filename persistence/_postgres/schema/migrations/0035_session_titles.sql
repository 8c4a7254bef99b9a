-- Sessions have a title, which lists search in a form without upper case (`title_folded`, made by the client, so that
-- it is that of Unicode whatever the database's locale), and metadata. Columns without a rewrite. Hosts of the release
-- before keep working: they delete a session without its title, which then comes back with its id.

alter table sessions
  add column title text not null default '',
  add column title_folded text collate "C" not null default '',
  add column metadata json not null default '{}';
