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
}
