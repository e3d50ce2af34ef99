"""Training: the objectives, and the Lightning task that minimises them."""

from captioner.training.likelihood import Likelihood
from captioner.training.objective import Objective
from captioner.training.reinforce import VIMCO, Reinforce
from captioner.training.self_critical import SelfCritical

__all__ = ["VIMCO", "Likelihood", "Objective", "Reinforce", "SelfCritical"]
