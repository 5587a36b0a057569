package io.tidepool.stores;

/** A store whose capacity can be set. */
interface ResizableStore {

    /**
     * Sets what the store may hold, and returns when it knows. Repeating a command is harmless.
     *
     * @return the bytes that it may hold now: more than asked where it could not give more back
     * @throws Exception where the store did not take it
     */
    long resize(long capacityBytes) throws Exception;

    /**
     * Asks the store for the limit that it has, whoever set it. A store whose limit ends with this
     * program has none.
     *
     * @throws Exception where the store did not tell
     */
    default long limit() throws Exception {
        throw new UnsupportedOperationException("it has no limit that outlives this program");
    }
}
