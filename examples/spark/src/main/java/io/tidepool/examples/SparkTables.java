package io.tidepool.examples;

import java.util.List;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;

/**
 * SQL over Parquet and ORC: {@code SparkTables DIRECTORY ROWS PASSES}. Row {@code i} is
 * (i, i % 1000, i * 7919 % 10007, "name-" + i % 97); all answers follow from that by arithmetic.
 */
public final class SparkTables {
    private SparkTables() {}

    public static void main(String[] arguments) throws Exception {
        String directory = arguments[0];
        long rows = Long.parseLong(arguments[1]);
        int count = Integer.parseInt(arguments[2]);
        try (SparkSession spark = SparkSession.builder().getOrCreate()) {
            Passes passes = new Passes();
            spark.sparkContext().addSparkListener(passes);
            Dataset<Row> table = spark.range(0, rows, 1, 4).selectExpr(
                    "id", "id % 1000 AS grp", "id * 7919 % 10007 AS val",
                    "concat('name-', id % 97) AS name");
            for (String format : List.of("parquet", "orc")) {
                String path = directory + "/" + format;
                passes.run(() -> {
                    table.write().mode("overwrite").format(format).save(path);
                    return null;
                });
                for (int pass = 0; pass < count; pass++) {
                    Row row = passes.run(() -> query(spark, format, path));
                    System.out.println("ROW " + format + " " + row.mkString(" "));
                }
            }
        }
    }

    private static Row query(SparkSession spark, String format, String path) {
        spark.read().format(format).load(path).createOrReplaceTempView("facts");
        String groups = "SELECT grp, count(*) AS n, sum(val) AS s FROM facts GROUP BY grp";
        return spark.sql("SELECT (SELECT count(*) FROM facts), (SELECT sum(val) FROM facts),"
                + " (SELECT sum(id) FROM facts WHERE name = 'name-13'),"
                + " (SELECT sum(g.s) FROM (" + groups + ") g WHERE g.grp < 10),"
                + " (SELECT count(*) FROM facts a JOIN (" + groups + ") g ON a.grp = g.grp"
                + "   WHERE a.id < 100000 AND g.n > 0)").first();
    }
}
