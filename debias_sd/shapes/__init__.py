"""The embedded world: scenes of coloured shapes, their captions, and a checker that reads pictures. No torch."""
