"""The parts of `actors.context`. No code here writes to a history or knows a run.

Modules, from the top down: `config`, `compaction` (the strategies), `history`, `calls`, `fitting`, `repair`,
`tokens`, `turns`.
"""
