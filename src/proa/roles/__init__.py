"""The two hulls and what joins them: trainer and makers, replay buffer, weights by version.

Plain classes: they can be built and called in a test; a runtime puts them into threads or actors.
"""
