# SPDX-License-Identifier: Apache-2.0
"""Random work of several processes, against a model that keeps each one's true bytes.

    ops       what can be done, as data: drawn by hypothesis, kept in a file
    truth     the bytes that a process must find
    actor     the process that does it, with libgksm in it
    world     stack, processes and their truths; carries out one step after another
    steps     what each kind of step does
    checks    what must hold in between, and once everybody has left
    scanning  how equal pages are looked for
    run       one list of steps from beginning to end

`python -m tests.support.model FILE` repeats such a run.
"""
