package io.tidepool.stores;

import alluxio.grpc.CreateLocalBlockRequest;
import alluxio.grpc.CreateLocalBlockResponse;
import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * A block that a worker of Alluxio made room for, and that nobody ever writes or commits. It lives
 * as long as the call to the worker that made it.
 *
 * <p>The call is made by reflection: Alluxio's client jar has gRPC inside under a name of its own,
 * its separate jars have it under the usual one.
 */
final class TemporaryBlock implements Reserver.Piece {

    private static final long PATIENCE_S = 30;
    private static final String CALL = "createLocalBlock";

    private static final class Ended {
        final Throwable cause;

        Ended(Throwable cause) {
            this.cause = cause;
        }
    }

    private final long blockId;
    private final BlockingQueue<Object> answers = new LinkedBlockingQueue<>();
    private final Class<?> observer;
    private final Object requests;
    private final String path;
    private volatile boolean ended;

    /** Opens the call on a client of a worker, and reserves. */
    TemporaryBlock(Object worker, Class<?> client, long blockId, long bytes) throws IOException {
        this.blockId = blockId;
        Method call = method(client, CALL);
        observer = call.getParameterTypes()[0];
        Object answering = Proxy.newProxyInstance(observer.getClassLoader(),
                new Class<?>[] {observer}, (proxy, method, arguments) -> {
                    return hear(proxy, method.getName(), arguments);
                });
        requests = invoke(call, worker, answering);
        path = request(bytes, false).getPath();
    }

    /** The file that is to be written, in the directory of the worker. */
    String path() {
        return path;
    }

    @Override
    public void extend(long bytes) throws IOException {
        request(bytes, true);
    }

    @Override
    public void cancel() {
        ended = true;
        try {
            invoke(method(observer, "onError"), requests, new IOException("given back"));
        } catch (IOException | RuntimeException gone) {
            // The worker ended the call before.
        }
    }

    @Override
    public boolean isLost() {
        return ended;
    }

    private CreateLocalBlockResponse request(long bytes, boolean more) throws IOException {
        CreateLocalBlockRequest request = CreateLocalBlockRequest.newBuilder().setBlockId(blockId)
                .setTier(0).setSpaceToReserve(bytes).setOnlyReserveSpace(more).build();
        Object answer = null;
        try {
            invoke(method(observer, "onNext"), requests, request);
            answer = answers.poll(PATIENCE_S, TimeUnit.SECONDS);
        } catch (IllegalStateException closed) {
            // The worker ended the call before; why, it told.
            answer = answers.poll();
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
        }
        if (answer instanceof Ended end) {
            throw failure(end.cause);
        }
        if (answer == null) {
            cancel();
            throw new IOException("the worker did not answer within " + PATIENCE_S + " s");
        }
        return (CreateLocalBlockResponse) answer;
    }

    private static IOException failure(Throwable cause) {
        String text = String.valueOf(cause);
        return text.contains("RESOURCE_EXHAUSTED") ? new NoRoomException(cause)
                : new IOException("the worker refused", cause);
    }

    /** What the worker says; called by gRPC. */
    private Object hear(Object proxy, String name, Object[] arguments) {
        switch (name) {
            case "onNext" -> answers.add(arguments[0]);
            case "onError" -> end((Throwable) arguments[0]);
            case "onCompleted" -> end(new IOException("the worker ended the call"));
            case "equals" -> {
                return proxy == arguments[0];
            }
            case "hashCode" -> {
                return System.identityHashCode(proxy);
            }
            case "toString" -> {
                return "block " + blockId;
            }
            default -> { }
        }
        return null;
    }

    private void end(Throwable cause) {
        ended = true;
        answers.add(new Ended(cause));
    }

    private static Method method(Class<?> of, String name) throws IOException {
        for (Method method : of.getMethods()) {
            if (method.getName().equals(name)) {
                return method;
            }
        }
        throw new IOException(new NoSuchMethodException(of.getName() + "." + name));
    }

    private static Object invoke(Method method, Object on, Object argument) throws IOException {
        try {
            return method.invoke(on, argument);
        } catch (InvocationTargetException thrown) {
            if (thrown.getCause() instanceof RuntimeException cause) {
                throw cause;
            }
            throw new IOException(thrown.getCause());
        } catch (IllegalAccessException closed) {
            throw new IOException(closed);
        }
    }
}
