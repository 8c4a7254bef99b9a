-- The name of `commit_runs` in the release before, for its hosts that still run. No code of ours calls it.
create or replace function commit_turns(
  f_shard text[], f_owner text[], f_epoch bigint[],
  t_run text[], t_fence int[], t_agent text[], t_expected int[], t_create boolean[],
  t_status text[], t_attempt int[], t_wake text[], t_wake_at timestamptz[], t_parked text[],
  t_result text[], t_error text[], t_retry_from int[], t_dead text[], t_orphans text[],
  t_log_from int[],
  e_turn int[], e_run text[], e_seq int[], e_kind text[], e_position text[], e_payload text[],
  n_turn int[], n_spawner text[], n_run text[], n_agent text[], n_hash bigint[], n_priority int[],
  n_retry text[], n_parent text[], n_root text[], n_depth int[], n_deadline timestamptz[],
  n_version text[], n_trace text[], n_supervision text[],
  b_turn int[], b_run text[], b_agent text[], b_sender text[], b_id text[],
  o_turn int[], o_agent text[], o_hash bigint[], o_sender text[], o_id text[], o_body text[],
  g_turn int[], g_run text[], g_n bigint[],
  k_turn int[], k_run text[], k_key text[],
  s_turn int[], s_agent text[], s_key text[], s_value text[],
  p_brokered boolean, p_local boolean, p_talk json, p_named text[], p_transcripts json default null,
  p_usage json default null)
returns table (turn int, outcome text, actual int, detail text, wake boolean,
  agent text, sender text, message_id text, arrival bigint, owner text)
language sql set search_path from current as $$
select * from commit_runs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
    $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39,
    $40, $41, $42, $43, $44, $45, $46, $47, $48, $49, $50, $51, $52, $53, $54, $55, $56, $57, $58, $59, $60,
    $61, $62, $63, $64, $65, $66)
$$;
