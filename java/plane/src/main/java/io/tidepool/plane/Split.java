package io.tidepool.plane;

/**
 * The size of all stores of a node together becomes a ceiling for each. Simpler than the split on
 * the node, which knows how fast each store gives back and what is under way: each store gets its
 * guaranteed part, and what is above is shared in proportion to the room between its bounds, in
 * whole blocks. What rounding leaves over goes to the first store that can take a whole block. The
 * node's own split has the last word on what each store does below its ceiling.
 */
final class Split {

    private Split() {
    }

    /** Ceilings in the order of the stores; more than the target only where mins forbid less. */
    static long[] of(long targetBytes, StoreFacts[] stores) {
        long[] ceilings = new long[stores.length];
        long room = targetBytes;
        double span = 0;
        for (StoreFacts store : stores) {
            room = Math.max(0, room - store.minBytes);
            span += store.ceilingBytes() - store.minBytes;
        }
        if (stores.length == 1) {
            ceilings[0] = Law.clamp(targetBytes, stores[0].minBytes, stores[0].ceilingBytes());
            return ceilings;
        }
        long shared = room;
        for (int i = 0; i < stores.length; i++) {
            double part = span > 0 ? (stores[i].ceilingBytes() - stores[i].minBytes) / span : 0;
            ceilings[i] = stores[i].minBytes;
            room = raise(ceilings, i, Math.min(room, (long) (shared * part)), room, stores[i]);
        }
        for (int i = 0; i < stores.length; i++) {
            room = raise(ceilings, i, room, room, stores[i]);
        }
        return ceilings;
    }

    /** Raises a ceiling by at most {@code part} of {@code room}; returns the room that is left. */
    private static long raise(long[] ceilings, int i, long part, long room, StoreFacts store) {
        long block = Math.max(1, store.blockBytes);
        long most = Law.add(ceilings[i], part);
        // At its upper bound a store is whole, whatever its blocks are.
        long raised = most >= store.ceilingBytes() ? store.ceilingBytes() : most - most % block;
        raised = Math.max(raised, ceilings[i]);
        long left = room - (raised - ceilings[i]);
        ceilings[i] = raised;
        return left;
    }
}
