"""A running job from within: commands on its nodes, and the stacks of its Python processes."""
