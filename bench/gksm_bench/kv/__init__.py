# SPDX-License-Identifier: Apache-2.0
"""What instances that serve requests share over time: weights, KV cache, the rest.

requests  who asks what when, drawn from a seed
blocks    which pages of an instance's pool hold which tokens
engine    one instance: a process that loads, prefills, decodes
fleet     the instances and one scan after each interval
sampling  what is counted after each interval, and what it adds up to
plot      the picture, like the paper's Figure 15(b)
show      the table
"""
