"""Texts and pictures as features: CLIP and SigLIP towers, each text and picture embedded once."""
