package io.tidepool.examples;

import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerTaskEnd;

/**
 * Times passes over the data and says on standard output what each took. With the property
 * {@code passes.wait}, it waits for a line on standard input before each pass, so that whoever
 * started the program can empty caches.
 */
final class Passes extends SparkListener {
    private final boolean waits = Boolean.getBoolean("passes.wait");
    private final ConcurrentLinkedQueue<String> localities = new ConcurrentLinkedQueue<>();
    private int number;

    /** A pass. */
    interface Body<T> {
        T run() throws Exception;
    }

    @Override
    public void onTaskEnd(SparkListenerTaskEnd end) {
        localities.add(end.taskInfo().taskLocality().toString());
    }

    <T> T run(Body<T> body) throws Exception {
        number++;
        if (waits) {
            System.out.println("READY " + number);
            System.out.flush();
            if (System.in.read() < 0) {
                throw new IllegalStateException("nobody waits for pass " + number);
            }
        }
        localities.clear();
        long started = System.nanoTime();
        T result = body.run();
        double seconds = (System.nanoTime() - started) / 1e9;
        // Events of the tasks come a little later than their results.
        Thread.sleep(50);
        long local = localities.stream().filter(name -> name.endsWith("_LOCAL")).count();
        long near = localities.stream().filter(name -> name.equals("RACK_LOCAL")).count();
        System.out.printf(
                "PASS {\"seconds\":%.4f,\"tasks\":%d,\"local_tasks\":%d}%n",
                seconds, localities.size(), local - near);
        System.out.flush();
        return result;
    }
}
