"""Names of AbstractRuntime over ours; see the package."""

from actors.workflow import compile_visualflow, compile_visualflow_tree

__all__ = ["compile_visualflow", "compile_visualflow_tree"]
