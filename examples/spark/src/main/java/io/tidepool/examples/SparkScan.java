package io.tidepool.examples;

import java.util.zip.CRC32;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaSparkContext;

/**
 * Reads all of its input in every pass: {@code SparkScan DATA RECORD_BYTES PASSES}. After each pass
 * it prints {@code SUM}, the sum of the CRC-32 of all records, which does not depend on their order.
 */
public final class SparkScan {
    private SparkScan() {}

    public static void main(String[] arguments) throws Exception {
        String data = arguments[0];
        int length = Integer.parseInt(arguments[1]);
        int count = Integer.parseInt(arguments[2]);
        try (JavaSparkContext spark = new JavaSparkContext(new SparkConf())) {
            Passes passes = new Passes();
            spark.sc().addSparkListener(passes);
            for (int pass = 0; pass < count; pass++) {
                long sum = passes.run(() ->
                        spark.binaryRecords(data, length).map(SparkScan::checksum).reduce(Long::sum));
                System.out.println("SUM " + sum);
            }
        }
    }

    private static long checksum(byte[] record) {
        CRC32 sum = new CRC32();
        sum.update(record);
        return sum.getValue();
    }
}
