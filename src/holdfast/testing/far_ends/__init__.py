"""Far ends with the habits of real providers, to try the ready contracts against.

Each keeps its own book of what took place and is the judge of "once". They run on the event loop
of whoever starts them, outside the process that is killed:

    async with PaymentProvider(key="sk_test_...") as provider:
        provider.troubles.append(Trouble("lose"))     # the next effect is done, its reply lost
        ...

or by hand: `python -m holdfast.testing.far_ends payments --port 8451`.
"""
