"""Model cards, as functions of records."""

from hf_electra_rtd.publishing.cards.details import Details
from hf_electra_rtd.publishing.cards.evaluation_files import eval_results_files
from hf_electra_rtd.publishing.cards.fine_tuned import fine_tuned_card
from hf_electra_rtd.publishing.cards.pretrained import pair_card, tower_card


__all__ = ["Details", "eval_results_files", "fine_tuned_card", "pair_card", "tower_card"]
