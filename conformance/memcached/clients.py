"""What pymemcache stores, it reads again: `clients.py PORT`."""

import sys

from pymemcache.client.base import Client

client = Client(("127.0.0.1", int(sys.argv[1])), timeout=10)
checked = 0


def check(got, expected):
    global checked
    assert got == expected, f"got {got!r}, expected {expected!r}"
    checked += 1


big = bytes(at * 7 % 251 for at in range(900_000))
check(client.set("a", b"one", noreply=False), True)
check(client.get("a"), b"one")
check(client.add("a", b"two", noreply=False), False)
check(client.replace("a", b"two", noreply=False), True)
check(client.append("a", b"!", noreply=False), True)
check(client.prepend("a", b"?", noreply=False), True)
check(client.get("a"), b"?two!")
check(client.set("big", big, flags=77, noreply=False), True)
check(client.get("big") == big, True)
value, number = client.gets("a")
check(client.cas("a", b"three", number, noreply=False), True)
check(client.cas("a", b"four", number, noreply=False), False)
check(client.get_many(["a", "big", "none"]), {"a": b"three", "big": big})
check(client.set("n", b"41", noreply=False), True)
check(client.incr("n", 1), 42)
check(client.decr("n", 2), 40)
check(client.touch("n", 100, noreply=False), True)
check(client.delete("n", noreply=False), True)
check(client.delete("n", noreply=False), False)
check(client.get("n"), None)
client.set_many({f"k{at}": b"%d" % at for at in range(500)}, noreply=True)
check(len(client.get_many([f"k{at}" for at in range(500)])), 500)
check(b"curr_items" in client.stats(), True)
print(f"{checked} checked")
