"""The parts of `benchmarks/arms.py`: how each arm is trained, what is kept of it, and what is made of all that is kept.

training   the arms: checkpoints from one base, with the CPU seconds and samples that each took
rejection  the arm that fine-tunes on what it has solved itself
records    the tasks, and one small file a seed and arm
figures    rates, differences, their intervals, and the curves
"""
