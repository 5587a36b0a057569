/*
 * A handle of the native library that many threads may use while one of them closes it. A thread
 * inside a native method is counted; the handle is freed once, by the last thread that leaves
 * after the close. No call ever gets a freed handle, and none waits for another.
 */
package io.tidepool.hadoop;

import java.io.Closeable;
import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;

abstract class NativeHandle implements Closeable {

    private static final int CLOSED = 1 << 31;
    private static final VarHandle USERS;

    static {
        try {
            USERS = MethodHandles.lookup().findVarHandle(NativeHandle.class, "users", int.class);
        } catch (ReflectiveOperationException error) {
            throw new ExceptionInInitializerError(error);
        }
    }

    private final long handle;

    /** Threads inside native methods, and the mark of the close. */
    @SuppressWarnings("unused")
    private volatile int users;

    NativeHandle(long handle) {
        if (handle == 0) {
            throw new IllegalStateException("the native library gave no handle and no error");
        }
        this.handle = handle;
    }

    /** The handle, to be followed by {@link #leave} in any case. Throws where it is closed. */
    final long enter() throws IOException {
        long entered = enterIfOpen();
        if (entered == 0) {
            throw closedException();
        }
        return entered;
    }

    /** As {@link #enter}, but 0 where it is closed. */
    final long enterIfOpen() {
        while (true) {
            int now = (int) USERS.getVolatile(this);
            if (now < 0) {
                return 0;
            }
            if (USERS.weakCompareAndSet(this, now, now + 1)) {
                return handle;
            }
        }
    }

    /** Ends what {@link #enter} began. */
    final void leave() {
        if ((int) USERS.getAndAdd(this, -1) == CLOSED + 1) {
            free(handle);
        }
    }

    /** A native call with a value. */
    interface Question<T> {
        T ask(long handle) throws IOException;
    }

    /** A native call without one. */
    interface Order {
        void give(long handle) throws IOException;
    }

    /** Makes a call with the handle. Reads do it by themselves, without an object a call. */
    final <T> T ask(Question<T> question) throws IOException {
        long entered = enter();
        try {
            return question.ask(entered);
        } finally {
            leave();
        }
    }

    /** As {@link #ask}, for what has no value. */
    final void order(Order order) throws IOException {
        long entered = enter();
        try {
            order.give(entered);
        } finally {
            leave();
        }
    }

    /** Whether this was closed. */
    final boolean isClosed() {
        return (int) USERS.getVolatile(this) < 0;
    }

    /** Marks this closed; whether this call was the one that did. */
    final boolean shut() {
        int before = (int) USERS.getAndBitwiseOr(this, CLOSED);
        if (before == 0) {
            free(handle);
        }
        return before >= 0;
    }

    @Override
    public void close() throws IOException {
        shut();
    }

    /** What a call on a closed object throws. */
    abstract IOException closedException();

    /** Gives the handle back to the native library. */
    abstract void free(long handle);
}
